"""What several commands share: options, output, configuration, importing the user's code."""
