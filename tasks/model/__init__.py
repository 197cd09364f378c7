"""The start model as a Hugging Face folder."""
