"""A trained model as an EAS bundle, with a serving proof."""
