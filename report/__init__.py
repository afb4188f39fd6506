"""What a person looks at. It shapes and renders; it computes nothing that another room does not already know."""
