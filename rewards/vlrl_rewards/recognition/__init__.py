"""What is in a picture: labels, counts, colours and text."""
