"""What wants a GPU: dialogues, and a language model of them from scratch."""
