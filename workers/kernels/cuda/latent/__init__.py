"""The CUDA kernels of latent attention. Open latent_attention.py first."""
