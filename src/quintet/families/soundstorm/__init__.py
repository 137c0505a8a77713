"""SoundStorm: audio generation by masked prediction of codec codes, one quantizer level after another."""
