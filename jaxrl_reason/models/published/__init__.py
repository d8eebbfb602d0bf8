"""Parts that published families share: keys, rotary tables, tensors."""
