#include "runtime/cuda/kernel_image.hpp"

#ifdef MORI_KERNEL_IMAGE
// The file as it is; the zero at the end is for images that are text.
asm(R"(
  .section .rodata.mori_kernel_image, "a", @progbits
  .balign 64
  .type mori_kernel_image, @object
mori_kernel_image:
  .incbin ")" MORI_KERNEL_IMAGE R"("
  .byte 0
  .size mori_kernel_image, . - mori_kernel_image
  .previous
)");
extern "C" __attribute__((visibility("hidden"))) const char mori_kernel_image[];
#endif

namespace mori::shmem::cuda {

const void* KernelImage() {
#ifdef MORI_KERNEL_IMAGE
  return mori_kernel_image;
#else
  return nullptr;
#endif
}

}  // namespace mori::shmem::cuda
