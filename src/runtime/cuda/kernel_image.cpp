#include "runtime/cuda/kernel_image.hpp"

#ifdef MORI_KERNEL_IMAGE
// The file as it is; the zero at the end is for images that are text.
asm(R"(
  .section .rodata.mori_kernel_image, "a", @progbits
  .balign 64
  .type kMoriKernelImage, @object
kMoriKernelImage:
  .incbin ")" MORI_KERNEL_IMAGE R"("
  .byte 0
  .size kMoriKernelImage, . - kMoriKernelImage
  .previous
)");
extern "C" __attribute__((visibility("hidden"))) const char kMoriKernelImage[];
#endif

namespace mori::shmem::cuda {

const void* KernelImage() {
#ifdef MORI_KERNEL_IMAGE
  return kMoriKernelImage;
#else
  return nullptr;
#endif
}

}  // namespace mori::shmem::cuda
