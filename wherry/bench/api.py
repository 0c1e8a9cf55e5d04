"""What does the load tester bring to the command line?"""

from wherry.bench.cli.flags import add_commands as add_commands
