"""MuLaN: sound and text in one space."""
