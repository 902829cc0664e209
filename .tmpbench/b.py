import torch, itertools, sys, time, os, math, csv
import triton
import pp
torch.manual_seed(0)
dev='cuda'
def make(B,Q,CTX,D,H=32,HKV=8,bs=16):
    x=8
    n=B*Q
    q=torch.randn(n,H,D,device=dev,dtype=torch.bfloat16)
    k=torch.randn(n,HKV,D,device=dev,dtype=torch.bfloat16)
    v=torch.randn_like(k)
    blocks=max(1,B*((CTX+Q+bs-1)//bs))+8
    kc=torch.randn(blocks,HKV,D//x,bs,x,device=dev,dtype=torch.bfloat16)
    vc=torch.randn(blocks,HKV,D,bs,device=dev,dtype=torch.bfloat16)
    per=(CTX+Q+bs-1)//bs
    bt=torch.randperm(blocks-8,device=dev)[:B*per].view(B,per).to(torch.int32)
    start=torch.arange(0,n+1,Q,device=dev,dtype=torch.int32)
    seq=torch.full((B,),CTX+Q,device=dev,dtype=torch.int32)
    o=torch.empty_like(q)
    one=torch.ones((),device=dev)
    def run():
        pp.context_attention_fwd(q,k,v,o,'auto',kc,vc,bt,start,seq,CTX+Q,Q,one,one)
    return run,o
cfgs=[(128,64,4,1),(128,128,8,3),(128,64,8,3),(128,64,8,2),(64,64,4,3),(128,128,8,2),(64,64,4,2),(128,64,4,3),(64,32,4,3),(128,32,4,3),(128,128,8,1),(64,64,4,1)]
shapes=[(1,512,8192),(1,4096,0),(4,1024,1024),(8,256,4096),(32,64,1024),(16,512,0),(1,2048,16384)]
out=open(os.environ['OUT']+'/p.csv','w')
for D in (128,64,256):
    made=[(s,*make(*s,D)) for s in shapes]
    ref={}
    for c in cfgs:
        pp.CFG=c
        row=[]
        for s,run,o in made:
            try:
                run(); torch.cuda.synchronize()
                if c==cfgs[0]: ref[s]=o.clone(); err=0
                else: err=((o-ref[s]).float().norm()/ref[s].float().norm()).item()
                t=triton.testing.do_bench(run,warmup=5,rep=60,return_mode='median')*1e3
                row.append((t,err))
            except Exception as e:
                row.append((float('nan'),str(type(e).__name__)+str(e)[:60]))
        print(D,c,' '.join(f"{t:.0f}" for t,_ in row),'err',max([e for _,e in row if not isinstance(e,str)] or [-1]),[e for _,e in row if isinstance(e,str)][:1],flush=True)
        for s,(t,e) in zip(shapes,row): out.write(f"{D},{c},{s},{t},{e}\n")
        out.flush()
