"""What published families have in common: keys, rotary tables, tensors."""
