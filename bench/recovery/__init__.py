"""What failures cost."""
