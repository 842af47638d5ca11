"""`outpace plan`: whether speculation will pay, before anything is bought or trained."""
