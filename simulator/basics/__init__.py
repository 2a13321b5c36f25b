"""What every room uses: names, numbers with units, dtypes, documents with places, whole files."""
