"""What the stages compute, one file per problem; common/problem.py says what a problem must answer."""
