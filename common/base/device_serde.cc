// SPDX-License-Identifier: Apache-2.0
#include "common/base/device_serde.h"

namespace takt {

v1::Device ToProto(const Device& device) {
  v1::Device out;
  out.set_kind(v1::DEVICE_KIND_CUDA);
  out.set_index(device.index);
  out.set_name(device.name);
  out.set_uuid(device.uuid);
  out.set_memory_bytes(device.memory_bytes);
  out.set_compute_capability(device.compute_capability);
  out.set_driver_version(device.driver_version);
  out.set_pci_bus_id(device.pci_bus_id);
  out.set_cudnn(device.cudnn);
  if (device.numa_node) out.set_numa_node(*device.numa_node);
  out.set_matmul_flops_per_second(device.matmul_rates.f32);
  out.set_bf16_matmul_flops_per_second(device.matmul_rates.bf16);
  out.set_shared(device.shared);
  return out;
}

Device FromProto(const v1::Device& device) {
  Device out{.index = device.index(),
             .name = device.name(),
             .uuid = device.uuid(),
             .memory_bytes = device.memory_bytes(),
             .compute_capability = device.compute_capability(),
             .driver_version = device.driver_version(),
             .pci_bus_id = device.pci_bus_id(),
             .cudnn = device.cudnn(),
             .matmul_rates = {.f32 = device.matmul_flops_per_second(),
                              .bf16 = device.bf16_matmul_flops_per_second()},
             .shared = device.shared()};
  if (device.has_numa_node()) out.numa_node = device.numa_node();
  return out;
}

}  // namespace takt
