"""Accuracy on problems the policy does not train on."""
