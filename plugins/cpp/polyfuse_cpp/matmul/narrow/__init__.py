"""Weights of fewer bits than what is multiplied: how they are converted, and four bits looked up."""
