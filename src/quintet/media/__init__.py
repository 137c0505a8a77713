"""Reading, writing, transforming and showing media; nothing outside this package opens a media file."""
