"""SoundStorm: sound from the codes of a codec, level by level."""
