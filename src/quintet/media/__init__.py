"""Reading, writing, transforming and displaying media; no other package opens a media file."""
