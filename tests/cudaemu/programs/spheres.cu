// Rays that meet spheres and a floor: materials with virtual functions, recursion for mirrors, vectors with operators.
// Run: cudaemu spheres.cu
// Prints: 48 x 32 rays, as bright as on the host
#include "check.h"

#define BOTH __host__ __device__

struct Vec {
  float x, y, z;
  BOTH Vec operator+(Vec b) const { return {x + b.x, y + b.y, z + b.z}; }
  BOTH Vec operator-(Vec b) const { return {x - b.x, y - b.y, z - b.z}; }
  BOTH Vec operator*(float k) const { return {x * k, y * k, z * k}; }
  BOTH float dot(Vec b) const { return x * b.x + y * b.y + z * b.z; }
  BOTH Vec unit() const { return *this * (1 / sqrtf(dot(*this))); }
};
struct Ray { Vec from, along; };

struct Scene;
struct Material { BOTH virtual float light(const Scene &scene, Vec point, Vec normal, Ray ray, int depth) const = 0; };
struct Sphere {
  Vec centre;
  float radius;
  const Material *material;
};
struct Scene {
  Sphere spheres[4];
  BOTH float trace(Ray ray, int depth) const {
    float nearest = 1e9f;
    const Sphere *hit = nullptr;
    for (const Sphere &s : spheres) {
      const Vec to = ray.from - s.centre;
      const float b = to.dot(ray.along), c = to.dot(to) - s.radius * s.radius, root = b * b - c;
      if (root < 0) continue;
      const float t = -b - sqrtf(root);
      if (t > 1e-3f && t < nearest) nearest = t, hit = &s;
    }
    if (!hit) return 0.5f + 0.5f * ray.along.y;
    const Vec point = ray.from + ray.along * nearest;
    return hit->material->light(*this, point, (point - hit->centre).unit(), ray, depth);
  }
};
struct Matt : Material {
  float shade;
  BOTH explicit Matt(float shade) : shade(shade) {}
  BOTH float light(const Scene &, Vec, Vec normal, Ray, int) const override {
    return shade * fmaxf(0.1f, normal.dot(Vec{0.6f, 0.8f, 0}));
  }
};
struct Mirror : Material {
  BOTH float light(const Scene &scene, Vec point, Vec normal, Ray ray, int depth) const override {
    if (depth == 0) return 0.2f;
    return 0.9f * scene.trace({point, ray.along - normal * (2 * ray.along.dot(normal))}, depth - 1);
  }
};

BOTH float pixel(int x, int y) {
  const Matt light(1), dark(0.4f);
  const Mirror mirror;
  const Scene scene = {
      {{{-1.2f, 0, 4}, 1, &light},
       {{1.2f, 0.2f, 4}, 1, &mirror},
       {{0, 1.5f, 5}, 0.7f, &mirror},
       {{0, -101, 4}, 100, &dark}}};
  return scene.trace({{0, 0.5f, 0}, Vec{(x - 24) / 24.0f, (16 - y) / 24.0f, 1}.unit()}, 3);
}

__global__ void render(float *out) {
  const int x = threadIdx.x, y = blockIdx.x;
  out[y * blockDim.x + x] = pixel(x, y);
}

int main() {
  const int w = 48, h = 32;
  Array<float> out(w * h);
  render<<<h, w>>>(out);
  const auto got = out.host();
  int off = 0;
  for (int i = 0; i < w * h; ++i) off += !(std::fabs(got[i] - pixel(i % w, i / w)) < 1e-3f);
  MUST(off < 10);  // an edge may fall to the other side
  std::printf("%d x %d rays, as bright as on the host\n", w, h);
}
