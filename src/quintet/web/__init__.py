"""The web page of `quintet view`: a server that reads run folders, its page, and an export to static files."""
