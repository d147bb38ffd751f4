"""Small language models, chat clients and token statistics that the language packages share."""
