// A graphics processor made of host memory, for a torch that is built without one.
//
// Tensors on "cuda:0" and "cuda:1" have memory like any other; operators on them run as those of the CPU do.
// What is real is everything around: dispatch by device, device guards, the engine's threads, allocation.

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>

namespace {

constexpr c10::DeviceIndex kDevices = 2;
constexpr size_t kAlignment = 512;

thread_local c10::DeviceIndex now_device = 0;
thread_local c10::StreamId now_stream[kDevices] = {0, 0};
std::atomic<int64_t> allocations[kDevices];
std::atomic<int64_t> calls{0};
std::atomic<int64_t> taken{0};  // memory that is no tensor: how much of it there is
std::atomic<int64_t> left{-1};  // allocations until there is no memory; negative: there always is
std::atomic<int64_t> synchronizations{0};

// --- devices and streams ---------------------------------------------------------------------------------------

struct Guard : c10::impl::DeviceGuardImplInterface {
  c10::Device device(c10::DeviceIndex index) const { return {c10::DeviceType::CUDA, index}; }
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device to) const override {
    c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return device(now_device); }
  void setDevice(c10::Device to) const override { now_device = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { now_device = to.index(); }
  c10::Stream stream(c10::Device where, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, where, id);
  }
  c10::Stream getStream(c10::Device where) const override {
    c10::Device known = where.has_index() ? where : getDevice();
    return stream(known, now_stream[known.index()]);
  }
  c10::Stream getDefaultStream(c10::Device where) const override { return stream(where, 0); }
  c10::Stream getNewStream(c10::Device where, int) const override { return stream(where, 1); }
  c10::Stream getStreamFromGlobalPool(c10::Device where, bool) const override { return stream(where, 1); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    c10::StreamId& now = now_stream[to.device_index()];
    c10::StreamId before = now;
    now = to.id();
    return stream(to.device(), before);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { ++synchronizations; }
  void synchronizeEvent(void*) const override { ++synchronizations; }
  void synchronizeDevice(const c10::DeviceIndex) const override { ++synchronizations; }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

struct Memory : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (left == 0) C10_THROW_ERROR(OutOfMemoryError, "the fake device has no memory left");
    if (left > 0) --left;
    if (bytes && posix_memalign(&data, kAlignment, bytes)) throw std::bad_alloc();
    ++allocations[now_device];
    return {data, data, &std::free, {c10::DeviceType::CUDA, now_device}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

Memory* memory() {
  static Memory made;
  return &made;
}

struct CUDAHooks : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return now_device; }
  void setCurrentDevice(c10::DeviceIndex to) const override { now_device = to; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override {
    return std::exchange(now_device, to);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override {
    return to < 0 ? now_device : std::exchange(now_device, to);
  }
  at::Device getDeviceFromPtr(void*) const override { return {c10::DeviceType::CUDA, now_device}; }
  at::Allocator* getCUDADeviceAllocator() const override { return memory(); }
};

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

struct Register {
  Register() {
    static Guard guard;
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
    c10::SetAllocator(c10::DeviceType::CUDA, memory());
  }
} registered;

// --- operators -------------------------------------------------------------------------------------------------

at::Tensor on_host(const at::Tensor& tensor) {
  auto options = tensor.options().device(c10::kCPU);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto found = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) found._set_conj(true);
  return found;
}

at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  auto options = tensor.options().device(device);
  c10::DeviceGuard guard(device);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto found = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  on_host(found).copy_(tensor);
  return found;
}

at::Tensor empty_memory_format(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), memory(), keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), memory(), keys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size),
      C10_AS_INTARRAYREF_SLOW(stride),
      offset ? offset->expect_int() : self.storage_offset());
  return result;
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef wanted) {
  auto size = at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(wanted), self.numel());
  auto stride = at::detail::computeStride(self.sizes(), self.strides(), size);
  TORCH_CHECK(stride.has_value(), "the view has no strides; use reshape");
  return self.as_strided(size, *stride, self.storage_offset());
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return as_strided(self, size, stride, std::nullopt);
}

const at::Tensor& resize(
    const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto wanted = C10_AS_INTARRAYREF_SLOW(size);
  if (self.sizes() == wanted) return self;
  auto made = at::empty(wanted, self.options());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), 0);
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.device() != source.device() && !non_blocking) ++synchronizations;
  auto host = [](const at::Tensor& tensor) { return tensor.is_cuda() ? on_host(tensor) : tensor; };
  host(self).copy_(host(source));
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  ++synchronizations;
  return on_host(self).item();
}

// Any other operator: on the CPU, with the same memory.
void anything(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++calls;
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto first = stack->size() - count;
  std::optional<c10::Device> device;
  std::vector<std::pair<at::Tensor, at::Tensor>> known;
  auto moved = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    TORCH_CHECK(!device || *device == tensor.device(), op.operator_name(), " got tensors of two devices");
    device = tensor.device();
    for (auto& [theirs, ours] : known)
      if (theirs.is_same(tensor)) return ours;
    known.emplace_back(tensor, on_host(tensor));
    return known.back().second;
  };
  for (size_t k = 0; k < count; ++k) {
    c10::IValue& value = (*stack)[first + k];
    if (value.isTensor()) {
      value = moved(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(moved(item));
      value = c10::List<at::Tensor>(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::optional<at::Tensor> item : value.toOptionalTensorList())
        list.push_back(item ? std::make_optional(moved(*item)) : std::nullopt);
      value = list;
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      auto wanted = value.toDevice();
      device = c10::Device(c10::DeviceType::CUDA, wanted.has_index() ? wanted.index() : now_device);
      value = c10::Device(c10::kCPU);
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  c10::Device target = device.value_or(c10::Device(c10::DeviceType::CUDA, now_device));
  for (auto& [theirs, ours] : known) {
    // an output that was made to grow
    if (theirs.sizes() != ours.sizes()) {
      theirs.resize_(ours.sizes());
      on_host(theirs).copy_(ours);
    }
  }
  auto back = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cuda()) return tensor;
    for (auto& [theirs, ours] : known)
      if (ours.is_same(tensor)) return theirs;
    return on_device(tensor, target);
  };
  const auto results = schema.returns().size();
  for (size_t k = stack->size() - results; k < stack->size(); ++k) {
    c10::IValue& value = (*stack)[k];
    if (value.isTensor()) {
      value = back(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(back(item));
      value = c10::List<at::Tensor>(list);
    }
  }
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&anything>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("copy_", copy);
  m.impl("_local_scalar_dense", local_scalar);
}

}  // namespace

extern "C" {
int64_t fake_current_device() { return now_device; }
int64_t fake_exchange_device(int64_t to) { return to < 0 ? now_device : std::exchange(now_device, to); }
int64_t fake_current_stream(int64_t device) { return now_stream[device]; }
void fake_set_stream(int64_t device, int64_t stream) { now_stream[device] = stream; }
int64_t fake_allocations(int64_t device) { return allocations[device]; }
// Memory that is no tensor.
int fake_take(uint64_t bytes, void** at) {
  try {
    *at = memory()->allocate(bytes).release_context();
  } catch (const c10::Error&) {
    return 1;
  }
  ++taken;
  return 0;
}
int fake_give(void* at) {
  --taken;
  std::free(at);
  return 0;
}
int64_t fake_taken() { return taken; }
void fake_allocations_left(int64_t count) { left = count; }
int64_t fake_calls() { return calls; }
int64_t fake_synchronizations() { return synchronizations; }
}
