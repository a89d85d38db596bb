"""What was charged to whom, in SQL: policies, charges, people, the journal and its proofs."""
