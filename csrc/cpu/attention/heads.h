// Sizes of heads, shared by attention and the rotation before it.
#pragma once

constexpr int HEAD_MULTIPLE = 16;
constexpr int MAX_HEAD_DIM = 1024;

// Elements of a key or a value in the cache: zeros follow the head's own, so that products take whole vectors. A zero
// changes no sum.
constexpr int cached_dim(int head_dim) { return (head_dim + HEAD_MULTIPLE - 1) / HEAD_MULTIPLE * HEAD_MULTIPLE; }
