"""What is published: made, looked into, and tried in an empty environment of each Python."""
