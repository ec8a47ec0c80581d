"""Text and tokens: tokenizer, chat template, detokenizer."""
