"""The run page, `quintet view`: a server over run folders on disk, its page, and the same as static files."""
