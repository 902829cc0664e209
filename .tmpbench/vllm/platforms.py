import torch
class P:
    def has_device_capability(self,c): return True
    def is_rocm(self): return False
    def get_device_capability(self): return (9,0)
    def fp8_dtype(self): return torch.float8_e4m3fn
    def is_cuda(self): return True
current_platform=P()
