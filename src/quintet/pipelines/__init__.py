"""What a user calls: trained models that encode, generate or embed."""
