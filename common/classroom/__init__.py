"""The classroom: a repository of exercises for students, and the grading of what they wrote, behind a wall."""
