"""MuLaN: a joint embedding of audio and text, trained with a contrastive loss."""
