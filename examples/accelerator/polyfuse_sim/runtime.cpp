// A simulated accelerator for torch's PrivateUse1: host memory behind asynchronous queues.
//
// A stream is a thread with a queue. Kernels, copies and operators are put into the queue of the current stream
// and run there in order; the host waits only where it must. While a stream is captured, its work goes into a
// graph instead. Memory comes from an allocator of its own, and kernels reach at most kElements elements.

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <set>
#include <thread>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
constexpr c10::DeviceIndex kDevices = 2, kStreams = 33;
constexpr size_t kMemory = size_t{1} << 30, kAlignment = 256;
constexpr int64_t kElements = int64_t{1} << 26;

// --- streams and events --------------------------------------------------------------------------------------

using Task = std::function<void()>;
struct Graph { c10::DeviceIndex device; std::vector<Task> tasks; };

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  std::atomic<size_t> unfinished = 0;
  std::string error;
  std::unique_ptr<Graph> captured;
  int64_t pool = 0;
  std::thread worker{[this] { work(); }};

  void give(Task task) {
    std::lock_guard lock(mutex);
    if (captured) return captured->tasks.push_back(std::move(task));
    ++unfinished;
    tasks.push_back(std::move(task));
    changed.notify_all();
  }
  void wait() {
    TORCH_CHECK(!captured, "the host cannot wait for a stream that is captured");
    while (size_t left = unfinished) unfinished.wait(left);
    std::lock_guard lock(mutex);
    std::string found = std::exchange(error, "");
    TORCH_CHECK(found.empty(), "a kernel failed: ", found);
  }
  void work() {
    at::AutoDispatchBelowADInplaceOrView below;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !tasks.empty(); });
      Task task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      std::string failed;
      try {
        task();
      } catch (const std::exception& fault) { failed = fault.what(); }
      task = nullptr;
      lock.lock();
      if (error.empty()) error = failed;
      --unfinished;
      unfinished.notify_all();
    }
  }
};

struct Event {
  std::atomic<bool> reached = true;
  double milliseconds = 0;
  void wait() { reached.wait(false); }
};
using EventPtr = std::shared_ptr<Event>;

thread_local c10::DeviceIndex now_device = 0;
thread_local c10::StreamId now_stream[kDevices] = {0, 0};
std::mutex registry;
std::atomic<Stream*> streams[kDevices][kStreams];  // never freed: threads run until the process ends

Stream& stream_at(c10::DeviceIndex device, c10::StreamId id) {
  std::lock_guard lock(registry);
  auto& one = streams[device][id];
  if (!one) one = new Stream;
  return *one;
}
Stream& current() { return stream_at(now_device, now_stream[now_device]); }

struct Guard : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return {kType, std::exchange(now_device, to.index())};
  }
  c10::Device getDevice() const override { return {kType, now_device}; }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(to.index() >= 0 && to.index() < kDevices, "there is no device ", to.index());
    now_device = to.index();
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override { now_device = to.index(); }
  static c10::Stream named(c10::Device where, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, {kType, where.has_index() ? where.index() : now_device}, id);
  }
  c10::Stream getStream(c10::Device where) const override {
    return named(where, now_stream[where.has_index() ? where.index() : now_device]);
  }
  c10::Stream getDefaultStream(c10::Device where) const override { return named(where, 0); }
  c10::Stream getNewStream(c10::Device where, int) const override {
    static std::atomic<int64_t> made{0};
    return named(where, 1 + made++ % (kStreams - 1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device where, bool) const override { return getNewStream(where, 0); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return named(to.device(), std::exchange(now_stream[to.device_index()], to.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  static Stream& stream(const c10::Stream& of) { return stream_at(of.device_index(), of.id()); }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new EventPtr(std::make_shared<Event>());
    EventPtr made = *static_cast<EventPtr*>(*event);
    made->reached = false;
    stream(on).give([made] {
      using namespace std::chrono;
      made->milliseconds = duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
      made->reached = true;
      made->reached.notify_all();
    });
  }
  void block(void* event, const c10::Stream& on) const override {
    stream(on).give([made = *static_cast<EventPtr*>(event)] { made->wait(); });
  }
  bool queryEvent(void* event) const override { return !event || (*static_cast<EventPtr*>(event))->reached; }
  void synchronizeEvent(void* event) const override { (*static_cast<EventPtr*>(event))->wait(); }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    return (*static_cast<EventPtr*>(end))->milliseconds - (*static_cast<EventPtr*>(begin))->milliseconds;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventPtr*>(event);
  }
  bool queryStream(const c10::Stream& of) const override { return !stream(of).unfinished; }
  void synchronizeStream(const c10::Stream& of) const override { stream(of).wait(); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    for (Stream* one : streams[device]) if (one) one->wait();
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override;
};

// --- memory --------------------------------------------------------------------------------------------------

struct Block {
  size_t bytes;
  c10::DeviceIndex device;
  int64_t owner;  // what may use it again: a stream, or (negative) a pool of captured graphs
  std::set<c10::StreamId> users;
};

struct Memory : c10::Allocator {
  std::mutex mutex;
  char* base[kDevices] = {};
  size_t used[kDevices] = {}, allocated[kDevices] = {}, peak[kDevices] = {};
  std::map<void*, Block> blocks;
  std::map<std::tuple<int, int64_t, size_t>, std::vector<void*>> free;

  c10::DataPtr allocate(size_t bytes) override {
    c10::Device device(kType, now_device);
    if (!bytes) return {nullptr, nullptr, &release, device};
    size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    Stream& stream = current();
    int64_t owner = stream.captured ? -stream.pool : now_stream[now_device];
    std::lock_guard lock(mutex);
    int at = now_device;
    if (!base[at]) {
      void* made = mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(made != MAP_FAILED, "the host has no memory for the device");
      base[at] = static_cast<char*>(made);
    }
    auto& list = free[{at, owner, wanted}];
    void* data = nullptr;
    if (!list.empty()) {
      data = list.back();
      list.pop_back();
    } else {
      TORCH_CHECK(used[at] + wanted <= kMemory, "the device is out of memory: ", bytes, " bytes were asked for");
      data = base[at] + used[at];
      used[at] += wanted;
    }
    blocks[data] = {wanted, now_device, owner, {}};
    allocated[at] += wanted;
    peak[at] = std::max(peak[at], allocated[at]);
    return {data, data, &release, device};
  }
  static void release(void* data);
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    current().give([=] { std::memcpy(to, from, bytes); });
  }
  bool holds(const void* data, size_t bytes, c10::DeviceIndex device) const {
    auto at = static_cast<const char*>(data);
    return base[device] && at >= base[device] && at + bytes <= base[device] + kMemory;
  }
};
Memory memory;

void Memory::release(void* data) {
  if (!data) return;
  Block block;
  {
    std::lock_guard lock(memory.mutex);
    block = std::move(memory.blocks.at(data));
    memory.blocks.erase(data);
    memory.allocated[block.device] -= block.bytes;
  }
  // other streams must be done with it before its own one can write to it again
  for (c10::StreamId user : block.users) stream_at(block.device, user).wait();
  std::lock_guard lock(memory.mutex);
  memory.free[{block.device, block.owner, block.bytes}].push_back(data);
}

void Guard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  std::lock_guard lock(memory.mutex);
  auto found = memory.blocks.find(data.get());
  if (found != memory.blocks.end() && found->second.owner != stream.id()) found->second.users.insert(stream.id());
}

struct Hooks : at::PrivateUse1HooksInterface {
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    auto made = memory.allocate(bytes);
    if (size_t common = std::min(bytes, storage.nbytes())) memory.copy_data(made.get(), storage.data(), common);
    storage.set_data_ptr_noswap(std::move(made));
    storage.set_nbytes(bytes);
  }
};

// --- operators -----------------------------------------------------------------------------------------------

bool here(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

at::Tensor on_host(const at::Tensor& tensor) {
  auto options = tensor.options().device(c10::kCPU);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor on_device(const at::Tensor& like) {
  return at::empty_strided(like.sizes(), like.strides(), like.options().device(c10::Device(kType, now_device)));
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory, kKeys, c10::dtype_or_default(dtype));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &memory, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
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

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto wanted = C10_AS_INTARRAYREF_SLOW(size);
  if (self.sizes() == wanted) return self;
  auto made = at::empty(wanted, self.options());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), 0);
  return self;
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  c10::DeviceGuard guard(here(self) ? self.device() : source.device());
  Stream& stream = current();
  bool leaves = self.device() != source.device();
  TORCH_CHECK(!leaves || !stream.captured, "a copy to another device cannot be captured");
  if (leaves && here(self) && here(source)) Guard().synchronizeDevice(source.device().index());
  auto to = here(self) ? on_host(self) : self, from = here(source) ? on_host(source) : source;
  stream.give([=]() mutable { to.copy_(from); });
  if (leaves && !non_blocking) stream.wait();
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  c10::DeviceGuard guard(self.device());
  current().wait();
  return on_host(self).item();
}

at::Tensor mapped(const at::Tensor& tensor, const std::function<at::Tensor(const at::Tensor&)>& change) {
  return tensor.defined() ? change(tensor) : tensor;
}

c10::IValue mapped(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) return mapped(value.toTensor(), change);
  if (value.isTensorList()) {
    std::vector<at::Tensor> list;
    for (const at::Tensor& item : value.toTensorVector()) list.push_back(mapped(item, change));
    return c10::List<at::Tensor>(list);
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (std::optional<at::Tensor> item : value.toOptionalTensorList())
      list.push_back(item ? std::make_optional(mapped(*item, change)) : std::nullopt);
    return list;
  }
  return value;
}

// Any other operator: the CPU's, in the queue. Torch's kernels for "meta" tensors say what it returns.
void anything(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), returned = schema.returns().size();
  torch::jit::Stack arguments(stack->end() - count, stack->end()), shapes;
  stack->resize(stack->size() - count);
  std::optional<c10::Device> device;
  for (c10::IValue& value : arguments) {
    mapped(value, [&](const at::Tensor& tensor) {
      if (here(tensor)) device = tensor.device();
      return tensor;
    });
    if (value.isDevice() && value.toDevice().type() == kType) {
      device = value.toDevice();
      value = c10::Device(c10::kCPU);
    }
  }
  c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  Stream& stream = current();
  std::vector<std::pair<at::Tensor, at::Tensor>> known;  // of the device, and as the host sees it
  torch::jit::Stack on_cpu;
  for (const c10::IValue& value : arguments)
    on_cpu.push_back(mapped(value, [&](const at::Tensor& tensor) {
      if (!here(tensor)) return tensor;
      for (auto& [ours, theirs] : known) if (ours.is_same(tensor)) return theirs;
      known.emplace_back(tensor, on_host(tensor));
      return known.back().second;
    }));
  auto written = [&](size_t k) {  // the argument that a result is
    const auto* alias = schema.returns()[k].alias_info();
    for (size_t i = 0; alias && i < count; ++i)
      if (schema.arguments()[i].alias_info() && *schema.arguments()[i].alias_info() == *alias) return int64_t(i);
    return int64_t{-1};
  };
  bool in_place = true, grows = false;
  for (size_t k = 0; k < returned; ++k) in_place &= written(k) >= 0;
  for (size_t i = 0; i < count; ++i)
    grows |= schema.arguments()[i].is_out() && arguments[i].isTensor() && !arguments[i].toTensor().numel();
  std::vector<at::Tensor> results;
  bool known_shapes = in_place && !grows && !op.hasTag(at::Tag::nondeterministic_seeded);
  if (!in_place && !op.hasTag(at::Tag::nondeterministic_seeded)) {
    for (const c10::IValue& value : arguments)
      shapes.push_back(mapped(value, [](const at::Tensor& tensor) {
        return here(tensor) ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta))
                            : tensor;
      }));
    for (c10::IValue& value : shapes) if (value.isDevice()) value = c10::Device(c10::kMeta);
    try {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &shapes);
      known_shapes = true;
      for (const c10::IValue& value : shapes) known_shapes &= value.isTensor();
    } catch (const std::exception&) {  // the result's shape depends on data
    }
  }
  if (known_shapes) {
    if (in_place) {
      stream.give([op, on_cpu]() mutable { op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &on_cpu); });
      for (size_t k = 0; k < returned; ++k) stack->push_back(arguments[written(k)]);
      return;
    }
    std::vector<at::Tensor> targets;
    for (const c10::IValue& value : shapes) {
      const at::Tensor& like = value.toTensor();
      if (!like.defined()) {  // a gradient that nobody asked for
        targets.emplace_back();
        stack->push_back(like);
        continue;
      }
      auto made = on_device(like);
      targets.push_back(on_host(made));
      stack->push_back(made);
    }
    stream.give([op, on_cpu, targets]() mutable {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &on_cpu);
      for (size_t k = 0; k < targets.size(); ++k) if (targets[k].defined()) targets[k].copy_(on_cpu[k].toTensor());
    });
    return;
  }
  stream.wait();  // refuses while the stream is captured
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &on_cpu);
  for (auto& [ours, theirs] : known)
    if (ours.sizes() != theirs.sizes()) {  // an output that was made to grow
      ours.resize_(theirs.sizes());
      on_host(ours).copy_(theirs);
    }
  for (const c10::IValue& value : on_cpu)
    stack->push_back(mapped(value, [&](const at::Tensor& tensor) {
      for (auto& [ours, theirs] : known) if (theirs.is_same(tensor)) return ours;
      auto made = on_device(tensor);
      on_host(made).copy_(tensor);
      return made;
    }));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&anything>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("resize_", resize);
  m.impl("copy_", copy);
  m.impl("_local_scalar_dense", local_scalar);
  for (auto name : {"convolution", "convolution_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&anything>());
}

struct Register {
  Register() {
    static Guard guard;
    c10::impl::device_guard_impl_registry[static_cast<size_t>(kType)].store(&guard);
    c10::SetAllocator(kType, &memory);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
  }
} registered;

// --- what Python calls ---------------------------------------------------------------------------------------

thread_local std::string trouble;
template <class F>
int guarded(F function) {
  try {
    function();
    return 0;
  } catch (const std::exception& fault) {
    trouble = fault.what();
    return 1;
  }
}

}  // namespace

extern "C" {
int sim_devices() { return kDevices; }
const char* sim_error() { return trouble.c_str(); }

// A kernel takes the addresses of its buffers and the values of its sizes; `elements` is -1 for a size.
int sim_launch(void (*kernel)(const int64_t*), int64_t count, const int64_t* values, const int64_t* bytes,
               const int64_t* elements) {
  return guarded([&] {
    for (int64_t k = 0; k < count; ++k) {
      if (elements[k] < 0) continue;
      TORCH_CHECK(elements[k] <= kElements, "a buffer of ", elements[k], " elements is beyond the device's addresses");
      TORCH_CHECK(!bytes[k] || memory.holds(reinterpret_cast<void*>(values[k]), bytes[k], now_device),
                  "argument ", k, " is no memory of device ", int(now_device));
    }
    current().give([kernel, given = std::vector<int64_t>(values, values + count)] { kernel(given.data()); });
  });
}
int sim_is_capturing() { return current().captured != nullptr; }
int sim_capture_begin(int64_t pool) {
  return guarded([&] {
    Stream& stream = current();
    stream.wait();
    std::lock_guard lock(stream.mutex);
    stream.captured = std::make_unique<Graph>(Graph{now_device, {}});
    stream.pool = pool;
  });
}
void* sim_capture_end() {
  Stream& stream = current();
  std::lock_guard lock(stream.mutex);
  return stream.captured.release();
}
// on the device where it was captured, whatever the current one is
void sim_replay(void* graph) {
  const auto& [device, tasks] = *static_cast<Graph*>(graph);
  for (const Task& task : tasks) stream_at(device, now_stream[device]).give(task);
}
void sim_forget(void* graph) {
  Guard().synchronizeDevice(static_cast<Graph*>(graph)->device);
  delete static_cast<Graph*>(graph);
}
void sim_memory(int64_t device, int64_t* found) {
  std::lock_guard lock(memory.mutex);
  found[0] = memory.allocated[device], found[1] = memory.peak[device], found[2] = memory.used[device];
}
}
