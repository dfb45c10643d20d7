#pragma once

#include <torch/csrc/stable/library.h>

// The operators' namespace in the dispatcher, which setup.py gives; torch_tiled/_op/namespace.py
// reads it from the record of the build. Texts name the operators tiled:: in every namespace.
#ifndef TORCH_TILED_NAMESPACE
#define TORCH_TILED_NAMESPACE tiled
#endif

// PyTorch's macros paste their arguments to other tokens, before which these expand them.
#define LIBRARY(name, m) STABLE_TORCH_LIBRARY(name, m)
#define LIBRARY_FRAGMENT(name, m) STABLE_TORCH_LIBRARY_FRAGMENT(name, m)
#define LIBRARY_IMPL(name, key, m) STABLE_TORCH_LIBRARY_IMPL(name, key, m)
