"""What every stage stands on: records, fingerprints, the store, `@stage`."""
