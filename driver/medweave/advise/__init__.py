"""Advice on training strategies and numbers of GPUs from measured steps."""
