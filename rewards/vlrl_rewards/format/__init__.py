"""The form of a response: tags, JSON and other structure, instructions, lengths, blanks."""
