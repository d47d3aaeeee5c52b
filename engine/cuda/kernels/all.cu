// Every kernel, as one text for the compiler.
#include "attention.cu"
#include "experts.cu"
#include "norm.cu"
#include "product.cu"
#include "random.cu"
#include "rotary.cu"
