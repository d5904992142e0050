// CUDA arrays, textures and surfaces, and copies in three dimensions: a part of runtime.cpp, which includes it.
//
// An array is device memory in plain rows: no program can see a GPU's own layout.

#include "../vm/texture.h"

namespace {

struct Array {
  cudaChannelFormatDesc format;
  cudaExtent extent;  // as it was asked for: 0 where it has no such dimension
  unsigned flags;
  char *base = nullptr;
  size_t texel() const { return (format.x + format.y + format.z + format.w) / 8; }
  size_t width() const { return extent.width * texel(); }  // bytes
  size_t height() const { return std::max<size_t>(extent.height, 1); }
  size_t depth() const { return std::max<size_t>(extent.depth, 1); }
  bool layered() const { return flags & cudaArrayLayered; }
};

auto &arrays() {
  static auto &all = *new std::set<const Array *>;
  return all;
}
auto &objects() {  // of textures and surfaces: their resources
  static auto &all = *new std::map<uint64_t, std::pair<cudaResourceDesc, cudaTextureDesc>>;
  return all;
}

const Array *array_of(const void *handle) {
  const Array *array = static_cast<const Array *>(handle);
  return arrays().count(array) ? array : nullptr;
}

cudaError_t no_array(const char *call) {
  return refuse(cudaErrorInvalidResourceHandle, format("%s: the array does not exist (or no longer)", call));
}

// What is wrong with the channels of a texel, or nothing.
std::string wrong_format(const cudaChannelFormatDesc &f) {
  const int bits[] = {f.x, f.y, f.z, f.w};
  const int channels = (f.x > 0) + (f.y > 0) + (f.z > 0) + (f.w > 0);
  bool same = f.x == 8 || f.x == 16 || f.x == 32;
  for (int n = 0; n < 4; ++n) same &= bits[n] == (n < channels ? f.x : 0);
  if (f.f > cudaChannelFormatKindFloat)
    return "the emulator has channels of integers and floats only: no packed or compressed formats";
  if (!same || channels == 3 || (f.f == cudaChannelFormatKindFloat && f.x == 8))
    return format("a texel must have 1, 2 or 4 channels of 8, 16 or 32 bits, got %d, %d, %d, %d", f.x, f.y, f.z, f.w);
  return "";
}

cudaError_t make_array(const char *call, cudaArray_t *out, const cudaChannelFormatDesc *format_, cudaExtent extent,
                       unsigned flags) {
  if (!out || !format_) return refuse(cudaErrorInvalidValue, format("%s: its arguments must not be null", call));
  const std::string wrong = wrong_format(*format_);
  if (!wrong.empty()) return refuse(cudaErrorInvalidChannelDescriptor, format("%s: %s", call, wrong.c_str()));
  if (!extent.width || (extent.depth && !extent.height && !(flags & cudaArrayLayered)))
    return refuse(cudaErrorInvalidValue,
                  format("%s: its width must be at least 1, and one with a depth needs a height", call));
  if (flags & ~unsigned(cudaArrayLayered | cudaArraySurfaceLoadStore | cudaArrayTextureGather | cudaArrayDefault))
    return refuse(cudaErrorNotSupported,
                  format("%s: the emulator has no cubemaps and no sparse arrays: a cubemap's faces may be six layers "
                         "(cudaArrayLayered)",
                         call));
  Array *const array = new Array{*format_, extent, flags};
  void *base = nullptr;
  if (const cudaError_t error = allocate(&base, array->width() * array->height() * array->depth(), DEVICE))
    return delete array, error;
  array->base = static_cast<char *>(base);
  arrays().insert(array);
  *out = reinterpret_cast<cudaArray_t>(array);
  return cudaSuccess;
}

// A box of bytes: where it begins, and from row to row and from slice to slice.
struct Box {
  char *at;
  size_t pitch, slice;
};

cudaError_t copy_box(const char *call, Box to, Box from, size_t width, size_t height, size_t depth,
                     cudaMemcpyKind kind) {
  if (height > 1 && (width > to.pitch || width > from.pitch))
    return refuse(cudaErrorInvalidPitchValue, format("%s: rows of %zu bytes do not fit the pitch", call, width));
  const bool rows = to.pitch == width && from.pitch == width;
  if (rows && to.slice == width * height && from.slice == to.slice) width *= height * depth, height = depth = 1;
  if (rows) width *= height, height = 1;
  cudaError_t error = cudaSuccess;
  for (size_t z = 0; z < depth; ++z)
    for (size_t y = 0; y < height && !error; ++y)
      error = copy(call, to.at + z * to.slice + y * to.pitch, from.at + z * from.slice + y * from.pitch, width, kind);
  return error;
}

// A box of an array that begins at these bytes, rows and slices; null if it reaches beyond.
Box box_of(const Array &a, size_t x, size_t y, size_t z, size_t width, size_t height, size_t depth) {
  const auto within = [](size_t at, size_t size, size_t all) { return at <= all && size <= all - at; };
  if (!within(x, width, a.width()) || !within(y, height, a.height()) || !within(z, depth, a.depth()))
    return {nullptr, 0, 0};
  const size_t pitch = a.width(), slice = pitch * a.height();
  return {a.base + z * slice + y * pitch + x, pitch, slice};
}

cudaError_t beyond(const char *call) {
  return refuse(cudaErrorInvalidValue, format("%s: the copy reaches beyond the array", call));
}

enum class Way { TO, FROM };

cudaError_t copy_array(const char *call, Way way, const void *handle, size_t x, size_t y, const void *memory,
                       size_t pitch, size_t width, size_t height, cudaMemcpyKind kind) {
  const Array *array = array_of(handle);
  if (!array) return no_array(call);
  const Box there = box_of(*array, x, y, 0, width, height, 1);
  if (!there.at) return beyond(call);
  const Box here{static_cast<char *>(const_cast<void *>(memory)), pitch, pitch * height};
  return way == Way::TO ? copy_box(call, there, here, width, height, 1, kind)
                        : copy_box(call, here, there, width, height, 1, kind);
}

// `count` bytes from a place of an array on, row by row: cudaMemcpyToArray and the like.
cudaError_t copy_line(const char *call, Way way, const void *handle, size_t x, size_t y, const void *memory,
                      size_t count, cudaMemcpyKind kind) {
  const Array *array = array_of(handle);
  if (!array) return no_array(call);
  const size_t start = y * array->width() + x, all = array->width() * array->height();
  if (start > all || count > all - start) return beyond(call);
  void *const there = array->base + start, *const here = const_cast<void *>(memory);
  return way == Way::TO ? copy(call, there, here, count, kind) : copy(call, here, there, count, kind);
}

cudaError_t copy_3d(const char *call, const cudaMemcpy3DParms *p) {
  if (!p) return refuse(cudaErrorInvalidValue, format("%s: its argument must not be null", call));
  const Array *const to = p->dstArray ? array_of(p->dstArray) : nullptr;
  const Array *const from = p->srcArray ? array_of(p->srcArray) : nullptr;
  if ((p->dstArray && !to) || (p->srcArray && !from)) return no_array(call);
  if ((!to == !p->dstPtr.ptr) || (!from == !p->srcPtr.ptr))
    return refuse(cudaErrorInvalidValue, format("%s: source and target must be an array or a pointer each", call));
  // With an array, widths and places are in its elements; without, in bytes.
  const size_t unit = to ? to->texel() : from ? from->texel() : 1;
  const size_t width = p->extent.width * unit, height = p->extent.height, depth = p->extent.depth;
  const auto box = [&](const Array *array, const cudaPitchedPtr &memory, const cudaPos &at) -> Box {
    if (array) return box_of(*array, at.x * array->texel(), at.y, at.z, width, height, depth);
    const size_t slice = memory.pitch * memory.ysize;
    return {static_cast<char *>(memory.ptr) + at.z * slice + at.y * memory.pitch + at.x, memory.pitch, slice};
  };
  const Box target = box(to, p->dstPtr, p->dstPos), source = box(from, p->srcPtr, p->srcPos);
  if (!target.at || !source.at) return beyond(call);
  return copy_box(call, target, source, width, height, depth, p->kind);
}

cudaError_t fill_3d(const char *call, cudaPitchedPtr memory, int value, cudaExtent extent) {
  cudaError_t error = cudaSuccess;
  for (size_t z = 0; z < extent.depth; ++z)
    for (size_t y = 0; y < extent.height && !error; ++y)
      error = fill(call, static_cast<char *>(memory.ptr) + (z * memory.ysize + y) * memory.pitch, value, extent.width);
  return error;
}

// What an object describes, or why there can be none.
std::string describe(const cudaResourceDesc &resource, Texture *t) {
  cudaChannelFormatDesc texel{};
  t->magic = Texture::MAGIC;
  t->size[0] = t->size[1] = t->size[2] = 1;
  if (resource.resType == cudaResourceTypeArray) {
    const Array *array = array_of(resource.res.array.array);
    if (!array) return "the array does not exist (or no longer)";
    texel = array->format;
    t->base = reinterpret_cast<uint64_t>(array->base);
    t->pitch = array->width(), t->slice = t->pitch * array->height();
    t->size[0] = array->extent.width, t->size[1] = array->height();
    (array->layered() ? t->layers : t->size[2]) = array->depth();
    t->surface = 1;  // also without cudaArraySurfaceLoadStore, as on an H200
  } else if (resource.resType == cudaResourceTypeLinear) {
    texel = resource.res.linear.desc;
    t->base = reinterpret_cast<uint64_t>(resource.res.linear.devPtr);
    const size_t bytes = (texel.x + texel.y + texel.z + texel.w) / 8;
    t->size[0] = bytes ? resource.res.linear.sizeInBytes / bytes : 0;
  } else if (resource.resType == cudaResourceTypePitch2D) {
    const auto &plane = resource.res.pitch2D;
    texel = plane.desc;
    t->base = reinterpret_cast<uint64_t>(plane.devPtr);
    t->pitch = plane.pitchInBytes, t->slice = t->pitch * plane.height;
    t->size[0] = plane.width, t->size[1] = plane.height;
    if (plane.pitchInBytes % 32) return format("pitchInBytes must be a multiple of 32, got %zu", plane.pitchInBytes);
  } else {
    return "the emulator has no mipmapped arrays: make an array of each level (cudaMallocArray)";
  }
  if (resource.resType != cudaResourceTypeArray) {
    if (!in_arena(t->base)) return format("devPtr must be device memory, got %#llx", (unsigned long long)t->base);
    if (t->base % 512)
      return format("devPtr must be a multiple of 512 (cudaDevAttrTextureAlignment), got %#llx",
                    (unsigned long long)t->base);
  }
  const std::string wrong = wrong_format(texel);
  t->channels = (texel.x > 0) + (texel.y > 0) + (texel.z > 0) + (texel.w > 0);
  t->channel_bytes = texel.x / 8;
  t->kind = texel.f;
  return wrong;
}

cudaError_t look_up(const char *call, const cudaTextureDesc &how, Texture *t) {
  const bool integers = t->kind != Texture::FLOAT;
  t->linear_filter = how.filterMode == cudaFilterModeLinear;
  t->normalized = how.normalizedCoords != 0;
  t->normalized_read = how.readMode == cudaReadModeNormalizedFloat && integers;
  for (int axis = 0; axis < 3; ++axis) t->address[axis] = how.addressMode[axis];
  memcpy(t->border, how.borderColor, sizeof t->border);
  if (t->normalized_read && t->channel_bytes == 4)
    return refuse(cudaErrorInvalidNormSetting,
                  format("%s: readMode must be cudaReadModeElementType for integers of 32 bits", call));
  if (t->linear_filter && integers && !t->normalized_read)
    return refuse(cudaErrorInvalidFilterSetting,
                  format("%s: filterMode must be cudaFilterModePoint for integers that are read as such", call));
  if (how.sRGB || how.maxAnisotropy > 1)
    return refuse(cudaErrorNotSupported,
                  format("%s: the emulator has no sRGB conversion and no anisotropic filtering: convert in the kernel, "
                         "or leave them out (#ifndef __EMULATOR__)",
                         call));
  return cudaSuccess;
}

cudaError_t make_object(const char *call, unsigned long long *out, const cudaResourceDesc *resource,
                        const cudaTextureDesc *how, const Texture &made) {
  void *at = nullptr;
  if (const cudaError_t error = allocate(&at, sizeof made, DEVICE)) return error;
  if (const cudaError_t error = copy(call, at, &made, sizeof made, cudaMemcpyHostToDevice)) return error;
  *out = reinterpret_cast<uint64_t>(at);
  objects()[*out] = {*resource, how ? *how : cudaTextureDesc{}};
  return cudaSuccess;
}

cudaError_t end_object(const char *call, unsigned long long object) {
  if (!objects().erase(object))
    return refuse(cudaErrorInvalidResourceHandle, format("%s: the object does not exist (or no longer)", call));
  return release(reinterpret_cast<void *>(object), false, call);
}

}  // namespace

extern "C" {

struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, enum cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}
cudaError_t cudaMallocArray(cudaArray_t *array, const struct cudaChannelFormatDesc *texel, size_t width, size_t height,
                            unsigned flags) {
  UNSAFE_CALL(cudaMallocArray);
  return make_array("cudaMallocArray", array, texel, cudaExtent{width, height, 0}, flags);
}
cudaError_t cudaMalloc3DArray(
    cudaArray_t *array, const struct cudaChannelFormatDesc *texel, struct cudaExtent extent, unsigned flags) {
  UNSAFE_CALL(cudaMalloc3DArray);
  return make_array("cudaMalloc3DArray", array, texel, extent, flags);
}
cudaError_t cudaFreeArray(cudaArray_t handle) {
  if (!handle) return cudaSuccess;
  UNSAFE_CALL(cudaFreeArray);
  const Array *array = array_of(handle);
  if (!array) return no_array("cudaFreeArray");
  const cudaError_t error = release(array->base, false, "cudaFreeArray");
  arrays().erase(array);
  delete array;
  return error;
}
cudaError_t cudaArrayGetInfo(
    struct cudaChannelFormatDesc *texel, struct cudaExtent *extent, unsigned *flags, cudaArray_t handle) {
  const Array *array = array_of(handle);
  if (!array) return no_array("cudaArrayGetInfo");
  if (texel) *texel = array->format;
  if (extent) *extent = array->extent;
  if (flags) *flags = array->flags;
  return cudaSuccess;
}
cudaError_t cudaGetChannelDesc(struct cudaChannelFormatDesc *texel, cudaArray_const_t handle) {
  const Array *array = array_of(handle);
  return array ? (*texel = array->format, cudaSuccess) : no_array("cudaGetChannelDesc");
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *memory, struct cudaExtent extent) {
  UNSAFE_CALL(cudaMalloc3D);
  const size_t pitch = (extent.width + 511) / 512 * 512;
  void *at = nullptr;
  const cudaError_t error = allocate(&at, pitch * extent.height * extent.depth, DEVICE);
  *memory = cudaPitchedPtr{at, pitch, extent.width, extent.height};
  return error;
}
cudaError_t cudaMemset3D(struct cudaPitchedPtr memory, int value, struct cudaExtent extent) {
  CALL(cudaMemset3D);
  return fill_3d("cudaMemset3D", memory, value, extent);
}
cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr memory, int value, struct cudaExtent extent, cudaStream_t stream) {
  CALL(cudaMemset3DAsync);
  return in_stream(stream, "cudaMemset3DAsync", [=] { return fill_3d("cudaMemset3DAsync", memory, value, extent); });
}
cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *how) {
  CALL(cudaMemcpy3D);
  const cudaError_t error = copy_3d("cudaMemcpy3D", how);
  protect_managed(false);
  return error;
}
cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *how, cudaStream_t stream) {
  CALL(cudaMemcpy3DAsync);
  if (!how) return copy_3d("cudaMemcpy3DAsync", how);
  return in_stream(stream, "cudaMemcpy3DAsync", [how = *how] { return copy_3d("cudaMemcpy3DAsync", &how); });
}

cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                                     size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpy2DToArray);
  return in_stream(stream, "cudaMemcpy2DToArrayAsync", [=] {
    return copy_array("cudaMemcpy2DToArray", Way::TO, to, x, y, from, pitch, width, height, kind);
  });
}
cudaError_t cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                                size_t height, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpy2DToArray);
  const auto error = copy_array("cudaMemcpy2DToArray", Way::TO, to, x, y, from, pitch, width, height, kind);
  return protect_managed(false), error;
}
cudaError_t cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width,
                                       size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpy2DFromArray);
  return in_stream(stream, "cudaMemcpy2DFromArrayAsync", [=] {
    return copy_array("cudaMemcpy2DFromArray", Way::FROM, from, x, y, to, pitch, width, height, kind);
  });
}
cudaError_t cudaMemcpy2DFromArray(void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width,
                                  size_t height, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpy2DFromArray);
  const auto error = copy_array("cudaMemcpy2DFromArray", Way::FROM, from, x, y, to, pitch, width, height, kind);
  return protect_managed(false), error;
}
cudaError_t cudaMemcpyToArrayAsync(
    cudaArray_t to, size_t x, size_t y, const void *from, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpyToArray);
  return in_stream(stream, "cudaMemcpyToArrayAsync", [=] {
    return copy_line("cudaMemcpyToArray", Way::TO, to, x, y, from, count, kind);
  });
}
cudaError_t cudaMemcpyToArray(
    cudaArray_t to, size_t x, size_t y, const void *from, size_t count, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpyToArray);
  const cudaError_t error = copy_line("cudaMemcpyToArray", Way::TO, to, x, y, from, count, kind);
  return protect_managed(false), error;
}
cudaError_t cudaMemcpyFromArrayAsync(
    void *to, cudaArray_const_t from, size_t x, size_t y, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpyFromArray);
  return in_stream(stream, "cudaMemcpyFromArrayAsync", [=] {
    return copy_line("cudaMemcpyFromArray", Way::FROM, from, x, y, to, count, kind);
  });
}
cudaError_t cudaMemcpyFromArray(
    void *to, cudaArray_const_t from, size_t x, size_t y, size_t count, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpyFromArray);
  const cudaError_t error = copy_line("cudaMemcpyFromArray", Way::FROM, from, x, y, to, count, kind);
  return protect_managed(false), error;
}
cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from, size_t x,
                                     size_t y, size_t width, size_t height, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpy2DArrayToArray);
  const Array *source = array_of(from);
  if (!source) return no_array("cudaMemcpy2DArrayToArray");
  const Box here = box_of(*source, x, y, 0, width, height, 1);
  if (!here.at) return beyond("cudaMemcpy2DArrayToArray");
  return copy_array("cudaMemcpy2DArrayToArray", Way::TO, to, to_x, to_y, here.at, here.pitch, width, height, kind);
}

cudaError_t cudaCreateTextureObject(cudaTextureObject_t *object, const struct cudaResourceDesc *resource,
                                    const struct cudaTextureDesc *how, const struct cudaResourceViewDesc *view) {
  CALL(cudaCreateTextureObject);
  if (!object || !resource || !how)
    return refuse(cudaErrorInvalidValue, "cudaCreateTextureObject: its arguments must not be null");
  if (view)
    return refuse(
        cudaErrorNotSupported,
        "cudaCreateTextureObject: the emulator has no resource views: give the array the format that is read");
  Texture made{};
  const std::string wrong = describe(*resource, &made);
  if (!wrong.empty()) return refuse(cudaErrorInvalidValue, "cudaCreateTextureObject: " + wrong);
  if (const cudaError_t error = look_up("cudaCreateTextureObject", *how, &made)) return error;
  return make_object("cudaCreateTextureObject", object, resource, how, made);
}
cudaError_t cudaDestroyTextureObject(cudaTextureObject_t object) {
  CALL(cudaDestroyTextureObject);
  return object ? end_object("cudaDestroyTextureObject", object) : cudaSuccess;
}
cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t *object, const struct cudaResourceDesc *resource) {
  CALL(cudaCreateSurfaceObject);
  if (!object || !resource)
    return refuse(cudaErrorInvalidValue, "cudaCreateSurfaceObject: its arguments must not be "
                                         "null");
  Texture made{};
  std::string wrong = describe(*resource, &made);
  if (wrong.empty() && !made.surface) wrong = "the resource must be an array";
  if (!wrong.empty()) return refuse(cudaErrorInvalidValue, "cudaCreateSurfaceObject: " + wrong);
  return make_object("cudaCreateSurfaceObject", object, resource, nullptr, made);
}
cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t object) {
  CALL(cudaDestroySurfaceObject);
  return object ? end_object("cudaDestroySurfaceObject", object) : cudaSuccess;
}
cudaError_t cudaGetTextureObjectResourceDesc(struct cudaResourceDesc *resource, cudaTextureObject_t object) {
  const auto found = objects().find(object);
  return found == objects().end() ? record(cudaErrorInvalidValue) : (*resource = found->second.first, cudaSuccess);
}
cudaError_t cudaGetTextureObjectTextureDesc(struct cudaTextureDesc *how, cudaTextureObject_t object) {
  const auto found = objects().find(object);
  return found == objects().end() ? record(cudaErrorInvalidValue) : (*how = found->second.second, cudaSuccess);
}
cudaError_t cudaGetSurfaceObjectResourceDesc(struct cudaResourceDesc *resource, cudaSurfaceObject_t object) {
  return cudaGetTextureObjectResourceDesc(resource, object);
}

// Not emulated: a call reports an error.
cudaError_t cudaMallocMipmappedArray(
    cudaMipmappedArray_t *, const struct cudaChannelFormatDesc *, struct cudaExtent, unsigned, unsigned) {
  return refuse(cudaErrorNotSupported,
                "cudaMallocMipmappedArray: the emulator has no mipmaps: make an array of each level (cudaMallocArray)");
}
cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t) { return record(cudaErrorInvalidResourceHandle); }
cudaError_t cudaGetMipmappedArrayLevel(cudaArray_t *, cudaMipmappedArray_const_t, unsigned) {
  return record(cudaErrorInvalidResourceHandle);
}

}  // extern "C"
