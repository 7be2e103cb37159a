"""Azure Personalizer's protocol over one decision point: its clients work unchanged."""
