"""Dense models in plain torch. These files import torch and each other only, for exports have copies of them."""
