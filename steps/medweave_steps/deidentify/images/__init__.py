"""De-identification of cohorts of 2-D images: photographs (JPEG, PNG), radiographs, and the tables about them."""
