"""The course's figures: how addresses meet sectors and banks (layout), and pictures of it, one file per kind."""
