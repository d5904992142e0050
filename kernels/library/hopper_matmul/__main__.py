from common.cli import main

main(__package__)
