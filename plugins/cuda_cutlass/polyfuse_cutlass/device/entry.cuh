namespace in_POLYFUSE_KERNEL {
struct Ready {
  typename Gemm::Arguments arguments;
  Gemm gemm;
};
}
// What the host calls. Each returns zero, or what went wrong: CUTLASS's status, or 1000 and an error of CUDA.
#define PF_ENTRY extern "C" __attribute__((visibility("default")))
PF_ENTRY int POLYFUSE_KERNEL_prepare(const void* args, const long long* numbers, int multiprocessors, void** ready,
                                     long long* workspace) {
  using namespace in_POLYFUSE_KERNEL;
  Ready* made = new Ready{arguments_of(*(const Args*)args, numbers, multiprocessors), {}};
  int status = accepts(made->arguments);
  if (!status) {
    *workspace = (long long)Gemm::get_workspace_size(made->arguments);
    // with scratch, each launch prepares it and goes on from there
    if (!*workspace) status = int(made->gemm.initialize(made->arguments));
  }
  if (status) delete made;
  else *ready = made;
  return status;
}
PF_ENTRY int POLYFUSE_KERNEL_start(void* ready, void* workspace, void* stream) {
  using namespace in_POLYFUSE_KERNEL;
  Ready* made = (Ready*)ready;
  int status = workspace ? int(made->gemm.initialize(made->arguments, workspace, (cudaStream_t)stream)) : 0;
  if (!status) status = int(made->gemm.run((cudaStream_t)stream));
  const cudaError_t error = cudaGetLastError();
  return error != cudaSuccess ? 1000 + int(error) : status;
}
PF_ENTRY void POLYFUSE_KERNEL_forget(void* ready) { delete (in_POLYFUSE_KERNEL::Ready*)ready; }
