"""The published JSON Schema of a job file, for editors and other languages: `job.schema.json` beside this file."""
