// What the runtime of a device defines for models that run without Python (HostDevice.runtime), and what it is given. Functions
// that return an int return 0, or another number and a message by `fail`. Above message.h.

struct device_code {
  int32_t chip;
  const char* code;
  int64_t size;
  int32_t threads, shared, starts_early;
  int64_t scratch, scratch_align;  // bytes for each block
};
struct device_kernel {
  const char *name, *symbol;
  int32_t cluster, cooperative, codes;
  const device_code* code;
};

// A device in use by a model. All of its work goes into one stream, in order.
struct device_state;

namespace {
// The device that is current, or the first one, with these kernels loaded; null where that fails.
device_state* device_open(const device_kernel* kernels, int count);
void device_close(device_state*);
// Around all other functions, in each thread.
int device_enter(device_state*);
void device_leave(device_state*);
// The stream to use from now on; null: the default one.
void device_stream(device_state*, void* stream);
// The code of a kernel that runs here.
const device_code& device_code_of(device_state*, int kernel);
// Without a message: more may be free after cached memory is released. Addresses are multiples of 256.
int device_allocate(device_state*, int64_t bytes, void** at);
void device_free(device_state*, void* at);
bool device_holds(device_state*, const void* at);
int device_clear(device_state*, void* at, int64_t bytes);
// Rows of so many bytes, whose beginnings lie so many bytes apart; to and from the device's or the CPU's memory.
int device_copy(device_state*, void* to, int64_t to_step, const void* from, int64_t from_step, int64_t width, int64_t rows);
// `grid`: blocks, or clusters along x; none is 0.
int device_launch(device_state*, int kernel, const int64_t* grid, void** parameters);
// Until all is done.
int device_wait(device_state*);
}  // namespace
